-- A script for wrk: send the requests of a file in turn, and check every answer. At the end, print the results as a line
-- of JSON, and then a line with an example of a wrong answer.
--
--     wrk … -s load.lua URL -- FILE TEXT
--
-- FILE contains complete requests, separated by NUL bytes. Every correct answer contains TEXT.

local requests = {}
local expected
local at = 0
local thread

answered = 0
wrong = 0
example = ""

function setup(it)
  thread = it
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for request in file:read("*a"):gmatch("[^%z]+") do
    requests[#requests + 1] = request
  end
  file:close()
  expected = args[2]
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function response(status, _, body)
  answered = answered + 1
  if status ~= 200 or not body:find(expected, 1, true) then
    wrong = wrong + 1
    if example == "" then
      example = status .. " " .. body:sub(1, 200)
    end
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"answered": %d, "wrong": %d, "broken": %d, "seconds": %.6f, "mean_ms": %.4f, "p50_ms": %.4f, "p99_ms": %.4f}\n',
    thread:get("answered"), thread:get("wrong"), errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration / 1e6, latency.mean / 1e3, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
  io.write("example: ", (thread:get("example"):gsub("%s+", " ")), "\n")
end
