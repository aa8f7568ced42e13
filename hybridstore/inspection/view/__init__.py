"""View: what is there: places on disk, versions, stores and their records, changes. Nothing here prints."""
