"""Fields of vendors' requests that the doors honour, for the tables of the how-to pages."""

OF_MESSAGES = frozenset(
    "model messages system max_tokens temperature top_p stop_sequences stream tools tool_choice thinking output_config "
    "output_format cache_control service_tier metadata routewright".split()
)
MESSAGES_PASSED = frozenset(("top_k",))
"""Passed unchanged to Anthropic's models; ``metadata.user_id``, too, which is also in the trace."""
OF_COMPLETIONS = frozenset(
    "model messages max_tokens max_completion_tokens temperature top_p stop seed response_format reasoning_effort "
    "verbosity tools tool_choice parallel_tool_calls service_tier stream stream_options metadata n routewright".split()
)
OF_RESPONSES = frozenset(
    "model input instructions max_output_tokens temperature top_p text reasoning tools tool_choice parallel_tool_calls "
    "service_tier stream stream_options metadata include routewright".split()
)
