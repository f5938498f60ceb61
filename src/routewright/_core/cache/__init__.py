"""May a cached answer be given for another question? Pure rules, and what was learned of their errors."""
