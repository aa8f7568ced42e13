"""Read by every Python that Spark's tests start, as this folder is on their PYTHONPATH.

Spark puts an archive of pyspark's source before the installed pyspark: Python compiles the archive at each start, which
takes half a second of processor time, and a query with a watermark starts a Python for each operator.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
