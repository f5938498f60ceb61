"""What agents work with: tools of MCP servers, web search, sandboxes for code."""
