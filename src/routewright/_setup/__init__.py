"""Makes and checks what a Router and a Console are made of: arguments, files, secrets."""
