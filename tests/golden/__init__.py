"""Golden outcomes: what the engine made of thousands of random scripts, recorded so that a change is seen.

python -m tests.golden diff        # which scripts changed, and where
python -m tests.golden show SEED   # one script and its whole outcome
"""
