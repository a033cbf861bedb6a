# The command with all extras and the torch without CUDA; the home is a volume:
#
#     docker build -t rlds .
#     docker run --rm -v rlds:/data rlds download sample/pendulum-d4rl
#     docker run --rm -v rlds:/data -v "$PWD:/work" rlds import run42.h5 --name local/run42
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir '/source[all]'

FROM python:3.12-slim
COPY --from=build /usr/local/lib/python3.12/site-packages /usr/local/lib/python3.12/site-packages
COPY --from=build /usr/local/bin/rlds /usr/local/bin/rlds
RUN useradd --create-home rlds && mkdir /data /work && chown rlds /data /work
USER rlds
ENV RLDS_HOME=/data
VOLUME /data
WORKDIR /work
ENTRYPOINT ["rlds"]
