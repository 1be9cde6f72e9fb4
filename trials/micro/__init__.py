"""Small measurements of one operation, for claims that no training or serving trial can show."""
