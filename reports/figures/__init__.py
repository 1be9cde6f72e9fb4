"""The charts of the report: numbers in, a plotly figure out."""
