-- The atomic steps of the Redis store. ARGV contains the step's name, the prefix of all keys, and the step's arguments.
--
-- Keys after the prefix, and their values:
--   sessions         hash    session -> its facts: [agent_key, owner, recipe, parent or ''] as JSON,
--                            [labels, TTL, created, parent] as JSON, and the details; newlines separate the three
--   kept             hash    session -> its facts, for deleted sessions that are kept for their forks
--   agents           hash    agent_key -> session
--   owners           set     owners that have sessions
--   owner:<owner>    zset    the owner's sessions, all with score 0 so that they are sorted by id
--   created:<owner>  zset    the owner's sessions, by time of creation
--   forks:<session>  zset    the forks of a session, by time of creation
--   past:<session>   hash    fork of a session, existing or kept -> index of the last record that the fork needs
--   expires          zset    sessions by time of expiry
--   head:<session>   hash    version, oldest, epoch, holder, last, recorded, added (if absent: 0, 1, 0, none, '', 0, 0);
--                            "/part" -> blob. last: the id of the last record; recorded: bytes of its records and
--                            facts; added: bytes of the blobs that its commits have added
--   history:<session> zset   [version, part, blob, size] as JSON, by version
--   records:<session> list   records, each at its index
--   calls:<session>  hash    call_id as JSON -> index
--   blob:<blob>      string  a blob or a recipe
--   references       hash    blob or recipe -> number of history rows or sessions that refer to it, a space, and the
--                            owner for whom its bytes count
--   bytes            hash    owner -> number of bytes stored for the owner's sessions
--   outside          string  this store's name in the bucket for large blobs; absent if no bucket is used
--   dropped          list    stubs of deleted blobs that were kept outside Redis
--   beat:<holder>    string  number of heartbeats of a worker, or -1 after the worker has exited
--   asked:<holder>   set     sessions whose leases other workers have asked this worker to release
--   noted            string  the last saved reading of the clock
--   uncounted        string  seconds by which the clock is ahead of store time, which decides when sessions expire
--
-- Redis runs no other command during a script, so each step is atomic. But Redis doesn't roll back a script that fails
-- halfway. So a step first takes all its arguments, reads all its data, and returns if it refuses the request. Only
-- after that does the step write, with commands that can't fail.
--
-- The arguments are a flat list, and `take` returns the next argument. A list is passed as its length, followed by its
-- items. Numbers above 2^53 would lose digits in Lua, and cjson writes large numbers with an exponent. So byte counts
-- must stay below that limit, and numbers that the script only passes on stay strings.
--
-- A full Redis refuses commands that might need memory, unless the script has already written something. So a step that
-- frees memory begins its writes with a command that needs no memory.

local BEAT_SECONDS = 86400 -- one day, after which the heartbeat count of a dead worker isn't needed any more
local ASKED_SECONDS = 60 -- requests to release a lease can expire, because a waiting worker repeats them every second
local ENDED = '-1' -- heartbeat count of a worker that has exited; a number, because older servers expect a number
local call = redis.call
local prefix = ARGV[2]
local SESSIONS, AGENTS, OWNERS = prefix .. 'sessions', prefix .. 'agents', prefix .. 'owners'
local KEPT, EXPIRES, REFERENCES = prefix .. 'kept', prefix .. 'expires', prefix .. 'references'
local BYTES, NOTED, UNCOUNTED = prefix .. 'bytes', prefix .. 'noted', prefix .. 'uncounted'

local function key(kind, id)
  return prefix .. kind .. ':' .. id
end

local position = 2
local function take()
  position = position + 1
  return ARGV[position]
end

local function take_pairs()
  local pairs_ = {}
  for i = 1, tonumber(take()) do
    pairs_[i] = {take(), take()}
  end
  return pairs_
end

local function take_map()
  local map = {}
  for i = 1, tonumber(take()) do
    local name = take()
    map[name] = take()
  end
  return map
end

-- Take the history of a copied session from the arguments: changes, records, and fields of its head.
local function take_history()
  local history = {rows = {}, records = {}}
  for i = 1, tonumber(take()) do
    history.rows[i] = {tonumber(take()), take(), take()}
  end
  for i = 1, tonumber(take()) do
    history.records[i] = {take(), take()}
  end
  history.version, history.oldest, history.last = take(), take(), take()
  return history
end

-- Pattern and maximum size of the stub of a blob that is kept outside Redis; see stores/blob_stubs.py.
local STUB, STUB_BYTES = '^%z' .. 'outside:(%d+):', 400

local function size_of(body)
  return tonumber(#body < STUB_BYTES and string.match(body, STUB) or #body)
end

-- Return the size of a stored blob, and its stub if it is kept outside Redis.
local function stored_size(blob)
  local size, body = call('STRLEN', key('blob', blob)), nil
  if size < STUB_BYTES and size > 0 then
    body = call('GET', key('blob', blob))
    if not string.match(body, STUB) then
      return size
    end
    size = size_of(body)
  end
  return size, body
end

local function blobs_exist(parts, blobs)
  for _, pair in ipairs(parts) do
    if not blobs[pair[2]] and call('EXISTS', key('blob', pair[2])) == 0 then
      return false
    end
  end
  return true
end

-- Return the first line of the facts: the agent key, the owner, the recipe and the parent.
local function first_facts(facts)
  local decoded, first = pcall(cjson.decode, string.match(facts, '^[^\n]*'))
  for i = 1, 4 do
    if not decoded or type(first) ~= 'table' or type(first[i]) ~= 'string' then
      return '', '', '', '' -- the facts are damaged, but the session can still be deleted
    end
  end
  return unpack(first)
end

-- Return the owner of a session with damaged facts, by searching the sessions of each owner.
local function owner_by_list(session)
  for _, owner in ipairs(call('SMEMBERS', OWNERS)) do
    if call('ZSCORE', key('owner', owner), session) then
      return owner
    end
  end
  return ''
end

-- Return the owner from the first line of the facts. A name without quotes and backslashes needs no JSON decoding.
local function owner_of(facts)
  return string.match(facts, '^%["[^"\\]*","([^"\\]*)"') or select(2, first_facts(facts))
end

local function count_bytes(owner, count)
  -- Lua writes minus zero as -0, which Redis doesn't accept as a number.
  if count ~= 0 and call('HINCRBY', BYTES, owner, count) <= 0 then
    call('HDEL', BYTES, owner)
  end
end

-- Return the number of references to a blob, and the rest of the entry: a space and an owner, or an empty string.
local function references(blob)
  local count, counted = string.match(call('HGET', REFERENCES, blob) or '0', '^(%d+)(.*)$')
  return tonumber(count), counted
end

-- Add references to a blob, and store the blob if it is new. Return the number of added bytes.
local function add_references(blob, blobs, count, owner)
  local added = 0
  if blobs[blob] and call('SETNX', key('blob', blob), blobs[blob]) == 1 then
    added = size_of(blobs[blob])
    count_bytes(owner, added)
  end
  local before, counted = references(blob)
  call('HSET', REFERENCES, blob, before + count .. (added > 0 and ' ' .. owner or counted))
  return added
end

-- Remove a reference, and delete the blob if that was the last reference. Return the number of freed bytes.
local function remove_reference(blob)
  local before, counted = references(blob)
  if before > 1 then
    call('HSET', REFERENCES, blob, before - 1 .. counted)
    return 0
  end
  local size, stub = stored_size(blob)
  call('HDEL', REFERENCES, blob)
  call('UNLINK', key('blob', blob))
  if stub then
    call('RPUSH', prefix .. 'dropped', stub)
  end
  if counted ~= '' then
    count_bytes(string.sub(counted, 2), -size)
  end
  return size
end

local function add_change(session, version, part, blob)
  local row = cjson.encode({version, part, blob, (stored_size(blob))})
  call('HSET', key('head', session), '/' .. part, blob)
  call('ZADD', key('history', session), version, row)
end

local function read_session(session)
  return {
    call('HGET', SESSIONS, session),
    call('ZSCORE', EXPIRES, session),
    call('LLEN', key('records', session)),
    call('HGETALL', key('head', session)),
  }
end

-- Apply a commit. Add its bytes to the owner's total in `taken`, which `steps.commit` adds up for all commits at once.
local function commit(taken)
  local session, epoch, index, version, call_id, record = take(), take(), tonumber(take()), take(), take(), take()
  local id, after, holder = take(), take(), take()
  local expires_at, release, parts, blobs = take(), take(), take_pairs(), take_map()
  local facts = call('HGET', SESSIONS, session)
  if not facts then
    return 0
  end
  local head, records = key('head', session), key('records', session)
  local length = call('LLEN', records)
  if index < length then
    return call('LINDEX', records, index) == record and 1 or 0
  end
  local stored = call('HMGET', head, 'epoch', 'last', 'holder', 'recorded', 'added')
  if index > length
    or (stored[1] or '0') ~= epoch
    or (stored[2] or '') ~= after
    or (holder ~= '' and stored[3] ~= holder)
    or (call_id ~= 'null' and call('HEXISTS', key('calls', session), call_id) == 1)
    or not blobs_exist(parts, blobs)
  then
    return 0
  end
  local owner, added = owner_of(facts), 0
  call('RPUSH', records, record)
  if call_id ~= 'null' then
    call('HSET', key('calls', session), call_id, index)
  end
  local recorded = string.format('%.0f', tonumber(stored[4] or '0') + #record)
  local fields = {'version', version, 'last', id, 'recorded', recorded}
  local function set(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  for _, pair in ipairs(parts) do
    local part, blob = pair[1], pair[2]
    local body, size = blobs[blob], nil
    if body and call('SETNX', key('blob', blob), body) == 1 then
      size = size_of(body)
      added = added + size
      call('HSET', REFERENCES, blob, '1 ' .. owner)
    else
      size = stored_size(blob)
      add_references(blob, {}, 1, owner)
    end
    call('ZADD', key('history', session), version, cjson.encode({tonumber(version), part, blob, size}))
    set('/' .. part, blob)
  end
  if added > 0 then
    set('added', string.format('%.0f', tonumber(stored[5] or '0') + added))
  end
  call('HSET', head, unpack(fields))
  taken[owner] = (taken[owner] or 0) + #record + added
  if expires_at ~= '' then
    call('ZADD', EXPIRES, expires_at, session)
  end
  if release ~= '' then
    call('HDEL', head, 'holder')
  end
  return 1
end

local steps = {}

local function add_history(session, owner, history, later_bytes)
  local head, recorded = key('head', session), 0
  for index, record in ipairs(history.records) do
    call('RPUSH', key('records', session), record[2])
    if record[1] ~= 'null' then
      call('HSET', key('calls', session), record[1], index - 1)
    end
    recorded = recorded + #record[2]
  end
  if recorded > 0 then
    count_bytes(owner, recorded)
    call('HINCRBY', head, 'recorded', recorded)
    call('HSET', head, 'last', history.last)
  end
  if history.version ~= '0' then
    call('HSET', head, 'version', history.version, 'oldest', history.oldest)
  end
  if later_bytes > 0 then
    call('HINCRBY', head, 'added', later_bytes)
  end
end

function steps.create()
  local parts, history, blobs, first_owner = take_pairs(), take_history(), take_map(), take()
  local parent, last, new = take(), take(), {}
  for _ = 1, tonumber(take()) do
    local session = {take(), take(), take(), take(), take(), take(), take()}
    if call('HEXISTS', SESSIONS, session[1]) == 0 and call('HEXISTS', KEPT, session[1]) == 0 then
      new[#new + 1] = session
    end
  end
  if #new > 0 and parent ~= '' and call('HEXISTS', SESSIONS, parent) == 0 then
    return -1
  end
  local rows, later_bytes = {}, 0
  for _, pair in ipairs(parts) do
    rows[#rows + 1] = {0, pair[1], pair[2]}
  end
  for _, row in ipairs(history.rows) do
    rows[#rows + 1] = row
  end
  for _, row in ipairs(rows) do
    if not blobs_exist({{row[2], row[3]}}, blobs) then
      return 0
    end
  end
  -- Add the references first, because add_change needs the size of the stored blob.
  for _, row in ipairs(rows) do
    local bytes = add_references(row[3], blobs, 1, first_owner)
    later_bytes = later_bytes + (row[1] > 0 and bytes or 0)
  end
  for _, each in ipairs(new) do
    local session, agent_key, owner, recipe, facts, expires_at, created_at = unpack(each)
    call('HSET', SESSIONS, session, facts)
    call('HSET', AGENTS, agent_key, session)
    call('SADD', OWNERS, owner)
    call('ZADD', key('owner', owner), 0, session)
    call('ZADD', key('created', owner), created_at, session)
    if parent ~= '' then
      call('ZADD', key('forks', parent), created_at, session)
      call('HSET', key('past', parent), session, last)
    end
    call('ZADD', EXPIRES, expires_at, session)
    add_references(recipe, blobs, 1, owner)
    count_bytes(owner, #facts)
    call('HSET', key('head', session), 'recorded', #facts)
    for _, row in ipairs(rows) do
      add_change(session, unpack(row))
    end
    add_history(session, owner, history, later_bytes)
  end
  for _, row in ipairs(rows) do
    add_references(row[3], {}, #new)
    remove_reference(row[3])
  end
  return 1
end

function steps.get()
  return read_session(take())
end

function steps.commit()
  local committed, taken = {}, {}
  for i = 1, tonumber(take()) do
    committed[i] = commit(taken)
  end
  for owner, count in pairs(taken) do
    count_bytes(owner, count)
  end
  return committed
end

function steps.list()
  local found = {}
  for i = 1, tonumber(take()) do
    found[i] = read_session(take())
  end
  return found
end

function steps.record_of_call()
  local session = take()
  local index = call('HGET', key('calls', session), take())
  return index and {index, call('LINDEX', key('records', session), index)}
end

function steps.records_at()
  local found = {}
  for i = 1, tonumber(take()) do
    found[i] = call('LRANGE', key('records', take()), take(), take())
  end
  return found
end

function steps.history()
  local session = take()
  local head = call('HMGET', key('head', session), 'version', 'oldest')
  local kept = call('HGET', KEPT, session)
  local has_versions = call('HEXISTS', SESSIONS, session) == 1 or (kept and select(4, first_facts(kept)) == '')
  return {
    has_versions and 1 or 0, head[1] or '0', head[2] or '1',
    call('ZRANGE', key('history', session), 0, -1),
  }
end

function steps.trim()
  local session, oldest, unneeded, freed = take(), take(), take_pairs(), 0
  local head = key('head', session)
  for _, pair in ipairs(unneeded) do
    if call('ZREM', key('history', session), pair[1]) == 1 then
      freed = freed + remove_reference(pair[2])
    end
  end
  if call('HEXISTS', SESSIONS, session) == 1 then
    if freed > 0 then
      call('HINCRBY', head, 'added', -freed)
    end
    if tonumber(oldest) > tonumber(call('HGET', head, 'oldest') or '1') then
      call('HSET', head, 'oldest', oldest)
    end
  end
end

-- Keep the data of a deleted session that its forks need. `last` lists the index of the last record that each needs.
local function keep(session, facts, last)
  local head, records, history = key('head', session), key('records', session), key('history', session)
  local _, owner, _, parent = first_facts(facts)
  local needed, freed = 0, 0
  for _, index in ipairs(last) do
    needed = math.max(needed, tonumber(index) + 1)
  end
  for unneeded = call('LLEN', records) - needed, 1, -100 do
    for _, record in ipairs(call('RPOP', records, math.min(unneeded, 100))) do
      freed = freed + #record
    end
  end
  for _, row in ipairs(call('ZRANGEBYSCORE', history, parent == '' and '(0' or '0', '+inf')) do
    call('ZREM', history, row)
    remove_reference(cjson.decode(row)[3])
  end
  count_bytes(owner, -freed)
  local recorded = call('HGET', head, 'recorded') - freed
  call('UNLINK', head, key('calls', session))
  call('HSET', head, 'recorded', string.format('%.0f', recorded))
  call('HSET', KEPT, session, facts)
end

-- Remove the data of a session without forks, and of each ancestor that was kept only for this session.
local function remove(session, facts)
  repeat
    local _, owner, recipe, parent = first_facts(facts)
    for _, row in ipairs(call('ZRANGE', key('history', session), 0, -1)) do
      remove_reference(cjson.decode(row)[3])
    end
    remove_reference(recipe)
    count_bytes(owner, -tonumber(call('HGET', key('head', session), 'recorded') or '0'))
    call('UNLINK', key('head', session), key('history', session), key('records', session), key('calls', session))
    call('HDEL', key('past', parent), session)
    facts = call('EXISTS', key('past', parent)) == 0 and call('HGET', KEPT, parent)
    if facts then
      call('HDEL', KEPT, parent)
    end
    session = parent
  until not facts
end

local function delete(session)
  local facts = call('HGET', SESSIONS, session)
  if not facts then
    return false
  end
  call('HDEL', SESSIONS, session)
  local agent_key, owner, _, parent = first_facts(facts)
  if agent_key == '' then
    owner = owner_by_list(session)
  end
  call('HDEL', AGENTS, agent_key)
  call('ZREM', EXPIRES, session)
  call('ZREM', key('owner', owner), session)
  call('ZREM', key('created', owner), session)
  call('ZREM', key('forks', parent), session)
  if call('EXISTS', key('owner', owner)) == 0 then
    call('SREM', OWNERS, owner)
  end
  local last = call('HVALS', key('past', session))
  if #last > 0 then
    keep(session, facts, last)
  else
    remove(session, facts)
  end
  return true
end

function steps.delete()
  local deleted = {}
  for i = 1, tonumber(take()) do
    local session = take()
    if delete(session) then
      deleted[#deleted + 1] = session
    end
  end
  return deleted
end

-- Return the store time, computed from the given clock, or else from Redis' clock, which is the same for all servers.
function steps.count_time()
  local limit, often, now = tonumber(take()), tonumber(take()), take()
  if now == '' then
    local read = call('TIME')
    now = tonumber(read[1]) + tonumber(read[2]) / 1000000
  else
    now = tonumber(now)
  end
  local noted = tonumber(call('GET', NOTED) or now - often)
  local uncounted = tonumber(call('GET', UNCOUNTED) or 0)
  if now < noted or now >= noted + often then
    call('DEL', NOTED)
    if math.abs(now - noted) > limit then
      uncounted = uncounted + now - noted
      call('SET', UNCOUNTED, string.format('%.17g', uncounted))
    end
    call('SET', NOTED, string.format('%.17g', now))
  end
  return {string.format('%.17g', now - uncounted), string.format('%.17g', uncounted)}
end

-- Return whether a live worker holds the lease of a session.
local function is_held(session)
  local holder = call('HGET', key('head', session), 'holder')
  local beat = holder and call('GET', key('beat', holder))
  return beat and beat ~= ENDED
end

function steps.delete_expired()
  local now, held_until, limit, busy = take(), tonumber(take()), tonumber(take()), take_map()
  local deleted, kept = {}, 0
  repeat
    local rows = call('ZRANGEBYSCORE', EXPIRES, '-inf', now, 'WITHSCORES', 'LIMIT', kept, limit - #deleted)
    for i = 1, #rows, 2 do
      local session = rows[i]
      if tonumber(rows[i + 1]) > held_until and (busy[session] or is_held(session)) then
        kept = kept + 1
      else
        deleted[#deleted + 1] = session
        if not delete(session) then
          call('ZREM', EXPIRES, session)
        end
      end
    end
  until #rows == 0 or #deleted >= limit
  return deleted
end

local function claim(session, holder, dead)
  if call('HEXISTS', SESSIONS, session) == 0 then
    return {}
  end
  local head = key('head', session)
  local fields, epoch_at, other = call('HGETALL', head), nil, nil
  for i = 1, #fields, 2 do
    if fields[i] == 'epoch' then
      epoch_at = i + 1
    elseif fields[i] == 'holder' then
      other = fields[i + 1]
    end
  end
  if other and other ~= holder then
    local heartbeat = call('GET', key('beat', other)) or '0'
    if heartbeat ~= ENDED and dead[other] ~= heartbeat then
      return {0, other, heartbeat}
    end
  end
  if not epoch_at then
    epoch_at = #fields + 2
    fields[epoch_at - 1], fields[epoch_at] = 'epoch', '0'
  end
  fields[epoch_at] = string.format('%.0f', tonumber(fields[epoch_at]) + 1)
  call('HSET', head, 'holder', holder, 'epoch', fields[epoch_at])
  return {1, call('LLEN', key('records', session)), fields}
end

function steps.claim()
  local holder, dead, claimed = take(), take_map(), {}
  while position < #ARGV do
    claimed[#claimed + 1] = claim(take(), holder, dead)
  end
  return claimed
end

function steps.release()
  local session, holder, epoch = take(), take(), take()
  local head = key('head', session)
  if call('HGET', head, 'holder') == holder and (call('HGET', head, 'epoch') or '0') == epoch then
    call('HDEL', head, 'holder')
  end
end

function steps.ask()
  local session, holder = take(), take()
  if call('GET', key('beat', holder)) ~= ENDED then
    call('SADD', key('asked', holder), session)
    call('EXPIRE', key('asked', holder), ASKED_SECONDS)
  end
end

function steps.heartbeat()
  local holder = take()
  local asked = call('SMEMBERS', key('asked', holder))
  call('DEL', key('asked', holder))
  local count = key('beat', holder)
  if call('GET', count) == ENDED then
    call('DEL', count)
  end
  call('INCR', count)
  call('EXPIRE', count, BEAT_SECONDS)
  return asked
end

function steps.holder_ended()
  local holder = take()
  call('DEL', key('asked', holder))
  call('SETEX', key('beat', holder), BEAT_SECONDS, ENDED)
end

return steps[ARGV[1]]()
