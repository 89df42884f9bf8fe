# SPDX-License-Identifier: Apache-2.0
# Two images: "bookie" has the servers and the tools, "spark" also PySpark and a Java. docs/deploying.md says how to run
# them. What is installed is what uv.lock names, hashes included.
#
#   docker build --target bookie --tag pyspark-bookkeeper:0.1.0 .
#   docker build --target spark --tag pyspark-bookkeeper:0.1.0-spark .
#
# A release names its base by digest: --build-arg BASE=python:3.11.11-slim-bookworm@sha256:…
ARG BASE=python:3.11.11-slim-bookworm

FROM ${BASE} AS source
RUN pip install --no-cache-dir uv==0.13.8
ENV UV_PROJECT_ENVIRONMENT=/opt/bookkeeper UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE NOTICE pyspark_bookkeeper.py ./
COPY bk_core ./bk_core
COPY bookie_server ./bookie_server
COPY bk_spark ./bk_spark
COPY bk_cli ./bk_cli
COPY docs ./docs

FROM source AS build-bookie
RUN uv sync --frozen --no-dev --no-editable --extra sasl --extra otel

FROM source AS build-spark
RUN uv sync --frozen --no-dev --no-editable --extra sasl --extra otel --extra spark

FROM ${BASE} AS base
RUN groupadd --gid 1000 bk && useradd --uid 1000 --gid 1000 --create-home bk && install -d -o bk -g bk /data
# Nothing is written outside of /data and /tmp, so that the root file system may be read-only.
ENV PATH=/opt/bookkeeper/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
VOLUME /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["bk"]

FROM base AS spark
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/bookkeeper /opt/bookkeeper
WORKDIR /home/bk
USER 1000:1000
CMD ["--help"]

FROM base AS bookie
COPY --from=build-bookie /opt/bookkeeper /opt/bookkeeper
WORKDIR /data
USER 1000:1000
EXPOSE 3181 4181 5181 6181
# Of whom the port is asked on loopback is clear, so no certificate is checked; with TLS say https.
ENV BK_LIVE_URL=http://127.0.0.1:6181/live
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import os, ssl, urllib.request as u; c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE; u.urlopen(os.environ['BK_LIVE_URL'], timeout=4, context=c)"]
CMD ["bookie", "run", "--data", "/data"]
