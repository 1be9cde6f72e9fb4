"""Programs that turn study.json into one HTML page. The only room that imports plotly."""
