"""Webhook endpoints, the outbox of deliveries, and signatures."""
