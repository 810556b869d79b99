#!/usr/bin/env python3
"""Draws a dashboard without Grafana: sends each query of its panels to a Prometheus, and prints one HTML page.

usage: dashboard.py PROMETHEUS MINUTES < packaging/grafana/dcd.json > page.html
       chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,HEIGHT --screenshot=page.png page.html

PROMETHEUS is like http://127.0.0.1:9090, and has scraped servers of dcd every few seconds for the last MINUTES. HEIGHT and the
queries without an answer are on standard error. Needs only Python 3.
"""
import html
import json
import math
import re
import sys
import time
from urllib import parse, request

LINES = "#3274d9 #e0752d #37872d #8f3bb8 #c4162a #0a7ea4 #b8860b #5c6bc0 #d6409f #6b7280 #00897b #795548".split()
NAMED = {"green": LINES[2], "orange": LINES[1], "red": LINES[4], "blue": LINES[0]}
CELL, ROW, STEPS = 1100 / 24, 30, 240
BOLD, MIDDLE = 'font-weight="bold"', 'text-anchor="middle" fill="#6b7280"'
server, minutes, end = sys.argv[1].rstrip("/"), float(sys.argv[2]), time.time()
begin, step = end - 60 * minutes, 60 * minutes / STEPS


def ask(target):
    expr = target["expr"].replace("$__rate_interval", "30s").replace("$stack", ".*")
    fields = parse.urlencode({"query": expr, "start": begin, "end": end, "step": step})
    with request.urlopen(f"{server}/api/v1/query_range?{fields}") as answer:
        result = json.load(answer)["data"]["result"]
    if not result:
        print(f"no answer: {expr}", file=sys.stderr)
    for series in result:
        name = re.sub(r"{{(\w+)}}", r"{\1}", target["legendFormat"]).format(**series["metric"])
        yield name, [(at, float(value)) for at, value in series["values"] if math.isfinite(float(value))]


def number(value, defaults):
    words = defaults.get("mappings", [{"options": {}}])[0]["options"]
    if f"{value:.0f}" in words:
        return words[f"{value:.0f}"]["text"]
    unit, power = defaults["unit"], min(4, int(math.log2(max(value, 1)) / 10))
    if unit in ("bytes", "binBps"):
        return f"{value / 1024 ** power:.4g} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}{'/s' * (unit == 'binBps')}"
    scale, word = {"percentunit": (100, " %"), "s": (1000, " ms") if 0 < value < 1 else (1, " s")}.get(unit, (1, ""))
    return f"{scale * value:{'.0f' if defaults.get('decimals') == 0 else '.3g'}}{word}"


def color(value, defaults):
    return [NAMED[part["color"]] for part in defaults["thresholds"]["steps"] if value >= (part["value"] or 0)][-1]


def text(x, y, what, more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{html.escape(what)}</text>'


def clock(left, width, y):
    every = 60 * max(1, round(minutes * 60 / width))
    for at in range(math.ceil(begin / every) * every, int(end) + 1, every):
        yield text(left + (at - begin) / (end - begin) * width, y, time.strftime("%H:%M", time.localtime(at)), MIDDLE)


def stat(series, defaults, width, height):
    high = (height - 26) / len(series)
    for i, (name, points) in enumerate(series):
        y, value = 29 + high * (i + 0.5), points[-1][1]
        style = f'text-anchor="end" {BOLD} font-size="{min(24, high * 0.7):.0f}" fill="{color(value, defaults)}"'
        yield text(10, y, name) + text(width - 10, y, number(value, defaults), style)


def timeline(series, defaults, width, height):
    left, high = 240, min(24, (height - 50) / len(series))
    scale = (width - left - 20) / (end - begin)
    for i, (name, points) in enumerate(series):
        y = 28 + high * i
        yield text(left - 8, y + high * 0.6, name, 'text-anchor="end"')
        for at, value in points:
            x, after = (left + (at + more - begin) * scale for more in (0, step))
            yield f'<path d="M{x:.0f} {y:.0f}H{after:.0f}v{high * 0.8:.0f}H{x:.0f}z" fill="{color(value, defaults)}"/>'
    yield from clock(left, width - left - 20, height - 8)


def graph(series, defaults, width, height):
    left, wide, words, x, row = 70, width - 90, [], 0, 0
    for i, (name, _) in enumerate(series):
        if x and x + 24 + 6.3 * len(name) > width - 20:
            x, row = 0, row + 1
        words.append((x + 10, row, LINES[i % len(LINES)], name))
        x += 24 + 6.3 * len(name)
    bottom = height - 39 - 15 * row
    top = max([value for _, points in series for _, value in points] + [defaults.get("max", 0)]) or 1
    base, parts = (2, (1, 1.5, 2)) if defaults["unit"] in ("bytes", "binBps") else (10, (1, 2, 4, 6, 8, 10))
    top = next(ends for ends in (base ** math.floor(math.log(top, base)) * part for part in parts) if ends >= top)
    for part in range(5):
        y = bottom - (bottom - 34) * part / 4
        yield f'<path d="M{left} {y:.0f}h{wide}" stroke="#e5e7eb"/>'
        yield text(left - 6, y + 4, number(top * part / 4, defaults), 'text-anchor="end"')
    for (name, points), (x, row, stroke, _) in zip(series, words):
        path, before = "", -math.inf
        for at, value in points:
            path += "L" if at - before < 1.5 * step else "M"
            path += f"{left + (at - begin) / (end - begin) * wide:.1f} {bottom - value / top * (bottom - 34):.1f}"
            before = at
        yield f'<path d="{path}h1" fill="none" stroke-width="1.5" stroke="{stroke}"/>'
        y = bottom + 30 + 15 * row
        yield f'<path d="M{x} {y - 4}h10" stroke-width="8" stroke="{stroke}"/>' + text(x + 14, y, name)
    yield from clock(left, wide, bottom + 15)


panels, drawn = json.load(sys.stdin)["panels"], []
for panel in panels:
    place, defaults = panel["gridPos"], panel["fieldConfig"]["defaults"]
    width, height = place["w"] * CELL - 6, place["h"] * ROW - 6
    found = [series for target in panel["targets"] for series in ask(target) if series[1]]
    draw = {"stat": stat, "timeseries": graph, "state-timeline": timeline}[panel["type"]]
    drawn.append(f'<svg x="{place["x"] * CELL + 3:.0f}" y="{place["y"] * ROW + 3}" width="{width:.0f}" height="{height}">'
                 f'<rect width="100%" height="100%" fill="#fff" stroke="#d1d5db"/>{text(10, 18, panel["title"], BOLD)}')
    none = text(width / 2, height / 2, defaults.get("noValue", "No data"), MIDDLE)
    drawn += [*(draw(found, defaults, width, height) if found else [none]), "</svg>"]
height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW
print(f"HEIGHT is {height}", file=sys.stderr)
print('<!doctype html><meta charset="utf-8"><title>dcd</title><body style="margin:0;background:#f4f5f7">'
      f'<svg width="1100" height="{height}" font-family="sans-serif" font-size="11">{"".join(drawn)}</svg>')
