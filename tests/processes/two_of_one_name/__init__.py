"""An app two of whose jobs have the same name."""
