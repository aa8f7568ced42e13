"""What suites measure with: runs in turn, fresh processes, streams, checks of what came back, results and their
form.
"""
