#!/bin/sh
# Install kafka-timers for an image: build.sh FOLDER EXTRAS, as build.sh /opt/kafka-timers worker,oscillator
#
# FOLDER becomes a Python environment without pip, and stays where it is: scripts in it know its path.
set -eu
folder=$1 extras=$2
source=$(cd "$(dirname "$0")/.." && pwd)

python3 -m venv --without-pip "$folder"
python3 -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check --no-cache-dir "$source[$extras]"
case ,$extras, in *,lake,*)
    # What spark-submit starts.
    cp "$source/deploy/run.py" "$folder/run.py"
    # The jars of Kafka's connector and of Delta, so that no job has to fetch them: it says --packages none.
    "$folder/bin/python" - <<'END'
import shutil, tempfile
from pathlib import Path

import pyspark
from kafka_timers.lake.session import open_session
from kafka_timers.settings import LakeSettings

with tempfile.TemporaryDirectory() as ivy:
    open_session(LakeSettings(master="local[1]"), {"spark.jars.ivy": ivy}).stop()
    for jar in Path(ivy, "jars").glob("*.jar"):
        shutil.copy(jar, Path(pyspark.__file__).parent / "jars")
END
    ;;
esac
# Fails the build, not the first start.
"$folder/bin/kafka-timers" --version
