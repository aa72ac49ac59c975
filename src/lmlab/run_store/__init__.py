"""The run store: lists, filters, compares, tags and removes the runs below a folder."""
