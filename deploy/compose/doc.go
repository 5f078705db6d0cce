// Package compose runs the demo in containers: the same cells, binary and links
// as deploy/local, started by Docker Compose from the files beside this one.
//
//	compose.yaml ─┬─ global.yaml            the global zone, edge, one-shot seed
//	              └─ c1.yaml ... c4.yaml    one cell each, from the parts in cell.yaml
//	compose.split.yaml                      on top: each service in a container of its own
//
//	people ─ 127.0.0.1:base+20+k ─┐
//	        network cK: gateway (all services), postgres, redis, nats, agent
//	                                                                     │
//	        network backbone, internal: agents and the edge only ────────┘
//
// `docker compose up --build` needs nothing of this package. Up does the same and
// works out ports and the files for another number of cells; Find reads from the
// engine what runs, however it was started; Unplug takes a zone's containers off
// the backbone. All of it is done with the docker command.
//
//	what                                 then
//	no engine, or an old Compose         one line, nothing was started
//	port taken, build fails              Compose's own message; what it started stays: Down removes it
//	seed fails                           its last lines; Up again goes on where it was
//	state file lost, or never there      Find makes it anew
//	agent comes back with a new address  peers dial its name
package compose
