"""The numbers of the report: pure data in, pure data out; nothing here draws."""
