"""Documents: text to typed documents, every error with its file, line and column.

`source` reads YAML, `documents` says what may be written, `settings` lays variables and flags over it, `shape` and
`names` find what is wrong, `report` says it, `weights` and `fetch` find and bring the model's files.
"""

from tandem.config.loading import Documents, check, load, read_box

__all__ = ["Documents", "check", "load", "read_box"]
