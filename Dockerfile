# alf_lite on a CPU: docker build -t alf_lite .
FROM python:3.12-slim
WORKDIR /alf_lite
COPY . .
# For the smaller CPU build, the line of pytorch.org comes before this one.
RUN pip install --no-cache-dir -c constraints.txt -e .
ENTRYPOINT ["alf_lite"]
