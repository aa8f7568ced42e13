"""Show: how an answer looks: tables, JSON, CSV, HTML, the text of keys and values. Nothing here reads a state."""
