"""View: the content of states: places on disk, versions, stores and their records, changes. Nothing here prints."""
