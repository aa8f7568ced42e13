"""Show: the form of answers (tables, JSON, CSV, HTML) and the text of keys and values. Nothing here reads a state."""
