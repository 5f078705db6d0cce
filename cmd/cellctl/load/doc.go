// Package load puts a known number of requests per second on the cells of a demo
// and measures every answer. cellctl load and the drills stand on it.
//
//	plan (seed) ──► shots on a fixed schedule ──► gateways, edge ──► samples ──► lines, figures
//	  kind, home, user, far or near, through whom         latency from the scheduled time
//
// The loop is open: a request is sent when its time has come, whatever became of
// the ones before, and its latency counts from that time. So a system that stops
// for a second shows as a second in many samples, not as fewer samples.
//
// The mix, per home and exact over each 20 requests: 8 browse, 2 search, 3 cart,
// 3 order (half to sellers of other cells), 2 transfer (three of four to users of
// other cells), 1 deposit, 1 lists. Every home gets the same number. Users and
// sellers are made, or found again by their phones, before anything is measured.
//
//	what goes wrong                    what the load says
//	any answer but 2xx                 an error, with its status and code
//	connection broken, 10 s over       an error
//	more than 2,000 unanswered         an error for each that wasn't sent
//	search doesn't answer at start     said; browse instead
package load
