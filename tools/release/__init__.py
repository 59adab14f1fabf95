"""`make release`: everything that a version is handed out as, in one folder (docs/publishing.md)."""
