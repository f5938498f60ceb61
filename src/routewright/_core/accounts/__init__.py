"""Claims, limits, budgets and holds."""
