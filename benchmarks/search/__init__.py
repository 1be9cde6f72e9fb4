"""How well strategies search, replayed over tables and synthetic spaces."""
