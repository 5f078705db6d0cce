// Package console is the operators' pages: how the system is, and what can be done
// about it. It runs beside control in the global zone, on its own origin and port,
// and nobody needs it: without it everything goes on.
//
//	agents ───────status, IDs, transfers──┐  each source asked by itself, with a
//	control ──acks, versions, marks───────┤  deadline, at the same time
//	gateways ─────/metrics────────────────┤
//	search ───────/metrics────────────────┘
//	                                      ▼
//	       collector: last value, its age, last failure ► Snapshot (atomic pointer)
//	                                      ▼
//	operator ──GET──► session ► page drawn from the Snapshot, never from a source
//	operator ──POST─► session ► job, event (one transaction) ► 303 to the job's page
//	                                      ▼
//	                     runner: jobs of a cell one by one ► agent ► state, event
//
// While nobody has looked for two minutes the sources that answer are asked six times
// less often: answering costs the cells something.
//
// A page waits for no source, so it takes as long with dead cells as with living
// ones. The exception is a transfer's story and the preview of what is done to it:
// they ask all cells then, for at most 2 s.
//
// Each value has a state: known, old (the last question failed, or the value is
// older than three questions), failed (never known, the last question failed) and
// unknown (nobody was asked yet). What isn't known is grey; it's never shown as zero.
//
// What is done is planned, then shown with the equal line of cellctl, then asked for
// with the typed name and a reason, then stored as a job before anything happens. Jobs
// of the same cell or transfer are done one after the other, as they were asked for,
// others at the same time; one that wasn't begun within five minutes isn't any more.
// A console begins each job once and keeps what came of it as soon as the database
// takes it. All but drills may be done twice, so after a start open jobs are begun
// again; a drill isn't, and the job says so.
//
// Owns the schema console: operators, sessions, jobs, events (append only: the
// application's role can't change or delete one).
//
// What can go wrong, and what happens then:
//
//	a cell, or its agent, dead      its rows are old, then say their age; nothing else changes
//	a source hangs                  given up at its deadline, asked again; only its panel is old
//	control's HTTP dead             the panels of the route table are old
//	Postgres down                   whoever is signed in goes on reading until the session's
//	                                end; signing in, events and actions answer 503
//	Postgres down at start          as above; the first operator is made when it's there
//	Postgres hangs                  as if it were down, after a second at most each 5 s
//	killed with a job open          the job is done again after the start; a drill's cellctl
//	                                goes on, ends, and mends what it broke
//	a job's end can't be kept       it's tried again, and nothing is done again for that
//	no word on an open page         after 40 s the page says that it's stale, and asks
//	job's cell doesn't answer       the job FAILED with the reason; asked for again it's another job;
//	                                a transfer's job names the cells that it couldn't ask
//	too many sign in at once        429: hashing takes one core and 19 MiB, one at a time
//	a wrong name or password        a line in the process's log, with the name if it's an operator's
//	post from another origin        403 (Sec-Fetch-Site, Origin), nothing is done
package console
