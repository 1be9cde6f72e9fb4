"""Strategies: what to try next. ``factory.make`` builds one by name; optuna stays behind here."""
