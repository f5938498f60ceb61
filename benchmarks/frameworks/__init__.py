"""Programs that run a framework's agents over our model object, and over the cheapest model that it allows."""
