"""Programs that turn study.json into one HTML page; the only room that imports plotly."""
