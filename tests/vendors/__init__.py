"""What vendors, servers and clients really send."""
