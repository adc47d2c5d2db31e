import sys; sys.path.insert(0,'/work/main/tests/spark')
import kafka_timers.lake.comparison as c
c._NAMED_MAX = 10
from test_lake_changes import test_each_of_many_random_changes_is_found as test_it
