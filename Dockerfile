# SPDX-License-Identifier: Apache-2.0
# One image for all services of docker-compose.yml: the package with Spark, and a Java for Spark and ZooKeeper.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE pyspark_bookkeeper.py ./
COPY bk_core ./bk_core
COPY bookie_server ./bookie_server
COPY bk_spark ./bk_spark
COPY bk_cli ./bk_cli
COPY docs ./docs
RUN pip install --no-cache-dir '.[spark]'

RUN useradd --create-home --uid 1000 bk && install -d -o bk -g bk /data
USER bk
WORKDIR /home/bk
VOLUME /data
ENTRYPOINT ["bk"]
CMD ["--help"]
