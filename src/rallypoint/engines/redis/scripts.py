"""The scripts of the Redis engine, each carried out by the server in one step. PURE.

The server runs one script at a time, so a script reads, decides and writes without interference.
The keys of a script are in KEYS, as a cluster requires; all keys of an engine share one hash
tag, so they are on one shard.

An entry is a hash: `v` the version, `d` the bytes. A version is the server's clock in
microseconds, or the last version plus one if that is larger: a server that takes over after a
failure may lack the last writes, and a plain counter would use their numbers again.
"""

COMMIT = """
-- KEYS: last version, index, receipt, then one a key.   ARGV: number of the commit, seconds
-- that a receipt lives; then five a key: its name, the version expected ('0': none), what to
-- do ('=' nothing, 'w' write, 'd' delete), the bytes, milliseconds to live ('0': for ever).
local receipt = redis.call('HMGET', KEYS[3], 'n', 'v')
if receipt[1] == ARGV[1] then return {1, receipt[2]} end
for i = 4, #KEYS do
  local at = 3 + (i - 4) * 5
  if (redis.call('HGET', KEYS[i], 'v') or '0') ~= ARGV[at + 1] then
    local found = {0}
    for j = 4, #KEYS do
      local entry = redis.call('HMGET', KEYS[j], 'v', 'd')
      found[#found + 1] = entry[1]
      found[#found + 1] = entry[2]
    end
    return found
  end
end
local now = redis.call('TIME')
local version = tonumber(now[1]) * 1000000 + tonumber(now[2])
version = math.max(version, tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
version = string.format('%.0f', version)
redis.call('SET', KEYS[1], version)
for i = 4, #KEYS do
  local at = 3 + (i - 4) * 5
  local name, what = ARGV[at], ARGV[at + 2]
  if what == 'w' then
    redis.call('DEL', KEYS[i])
    redis.call('HSET', KEYS[i], 'v', version, 'd', ARGV[at + 3])
    if ARGV[at + 4] == '0' then
      redis.call('ZADD', KEYS[2], 0, name)
    else
      redis.call('PEXPIRE', KEYS[i], ARGV[at + 4])
      redis.call('ZREM', KEYS[2], name)
    end
  elseif what == 'd' then
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[2], name)
  end
  if what ~= '=' then redis.call('PUBLISH', KEYS[i], version) end
end
redis.call('HSET', KEYS[3], 'n', ARGV[1], 'v', version)
redis.call('EXPIRE', KEYS[3], ARGV[2])
return {1, version}
"""

RENEW = """
-- KEYS: the entry.   ARGV: the version seen, milliseconds to live.
if redis.call('HGET', KEYS[1], 'v') ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
