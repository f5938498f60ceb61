"""The door for clients of Anthropic's Messages API (contract 14): what they send becomes a route request, its answer a
message, in their own words. It decides nothing.
"""
