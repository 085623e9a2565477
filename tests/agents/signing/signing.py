#!/usr/bin/python3
"""An agent without a model, that its user signs in to with a code or a device. Its prompts are commands."""

# ruff: noqa: T201

import base64
import hashlib
import json
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

HOME = Path.home() / ".signing"
KEPT, PENDING = HOME / "credentials.json", HOME / "pending"
LOGIN, CLOUD = "https://login.example.test", "https://cloud.example.test"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


def send(url, fields=None, **headers):
    data = urlencode(fields).encode() if fields is not None else None
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, {"text": text}


def token(client, **fields):
    status, found = send(f"{LOGIN}/oauth/token", {"client_id": client, **fields})
    if status == 200:
        KEPT.write_text(json.dumps({**found, "client": client}))
    return status, found


def refresh():
    kept = json.loads(KEPT.read_text())
    return token(kept.get("client", ""), grant_type="refresh_token", refresh_token=kept["refresh_token"])


def call():
    """Use the API; with a token that it does not accept, refresh once."""
    for again in (True, False):
        bearer = json.loads(KEPT.read_text())["access_token"]
        status, found = send(f"{CLOUD}/whoami", Authorization=f"Bearer {bearer}")
        if status != 401 or not again:
            break
        renewed, why = refresh()
        if renewed != 200:
            return renewed, why
    return status, found


def follow(word, rest):
    if word == "begin":  # print the address for the browser
        verifier = secrets.token_urlsafe(40)
        PENDING.write_text(f"{rest} {verifier}")
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        where = {"client_id": rest, "code_challenge": digest, "state": "s", "redirect_uri": "http://localhost:1/done"}
        return 200, f"{LOGIN}/authorize?{urlencode(where)}"
    if word == "finish":
        client, verifier = PENDING.read_text().split()
        return token(client, grant_type="authorization_code", code=rest, code_verifier=verifier)
    if word == "device":
        return send(f"{LOGIN}/device/code", {"client_id": rest})
    if word == "poll":
        client, code = rest.split()
        return token(client, grant_type=DEVICE, device_code=code)
    if word == "steal":  # a refresh with another text
        return send(f"{LOGIN}/oauth/token", {"client_id": "x", "grant_type": "refresh_token", "refresh_token": rest})
    if word == "post":
        url, _, body = rest.partition(" ")
        return send(url, dict(pair.split("=", 1) for pair in body.split("&")))
    if word == "raw":  # the typed request
        return 200, subprocess.run(["curl", "-sS", *rest.split()], capture_output=True, text=True, check=False).stdout
    if word == "get":
        bearer = json.loads(KEPT.read_text())["access_token"]
        return send(rest, Authorization=f"Bearer {bearer}")
    if word == "run":
        done = subprocess.run(["sh", "-c", rest], capture_output=True, text=True, check=False)
        return 200, done.stdout + done.stderr
    return {"call": call, "refresh": refresh}[word]()


word, _, rest = sys.argv[1].partition(" ")
print(json.dumps(follow(word, rest)))
