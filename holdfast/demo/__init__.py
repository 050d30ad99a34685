"""The demo: a Spark job that checkpoints the flights of 2013, is killed three times, resumes, and is cleaned up while it runs.

`story` is the parent and tells what happened; `driver` (the Spark job), `cleaner` (the vacuum) and `checker` (the comparison) are
processes of their own. Only the front door is used: what the demo does, a user can do.
"""
