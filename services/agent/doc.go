// Package agent is a zone's border and its housekeeper: one agent per cell, and
// one in the global zone (without a database of its own there, but for the
// catalog's changes).
//
//	           other zones' agents, the edge
//	                  │ mutual TLS
//	            ┌─────┴──────┐
//	            │ link.Border│ targets: gateway, gateway-public, nats, agent
//	            └─────┬──────┘          (global: control, catalog, idgen, search, nats, agent)
//	local CONNECT ────┤
//	                  │
//	control ──long poll──► route table ──► cell.slots (one transaction with the version)
//	peers   ──each 5 s, or each 1 s ──┘ ├─► snapshot files in ROUTE_DIR
//	          when control is silent    ├─► GET /route, NATS route.table
//	                                    └─► the zone's Redis, never back in version
//	processes ──NATS route.ack, GET /route──► who holds what ──► /admin/status, control
//	                                             └─ behind? pushed again each second
//	standbys' agents ──GET /standby, each 1 s──► own slots that are covered ──► /admin/status
//	control ──POST /incoming──► cell.slots.incoming of own slots (exchange of a standby)
//	lease row: written anew after each postmaster start (never ends, until leases exist)
//	cell.id_* ──idbank.Bank──► the processes' stock of IDs when idgen is away; ids.json in
//	ROUTE_DIR remembers how far that went
//	outbox ──bus.Dispatcher──► XOUT streams of the own NATS
//	         └─outputcommit.Gate──POST /standby/applied──► standbys' agents: do you have it?
//	                             └─POST /marks──► control, when they don't (AGENT_OUTPUT_COMMIT)
//	WAL ──cdc.Relay──► CDC_search, a stream of the own NATS
//	rows of slots that were let go of ──cellkit/cleanup──► deleted in batches
//	operator ──POST /admin/transfers/:id/jobs──► cell.transfer_jobs ──► the user service does it
//	every table ──each minute──► rows in the wrong place (I2): a metric, status
//
// It listens on three addresses: ADDR for the own zone and the operator (admin
// routes need the operator's key), PEER_ADDR for peers through the border, and
// the border itself.
//
// # What can go wrong
//
//	what                        then
//	control down                the held table stays; peers are asked for newer ones
//	control dies in a push      who didn't get the table has it from a peer
//	Redis flushed, rolled back  written anew within 5 s; newer than the own table, it's taken
//	database down               routers still get the table; it is applied when it's back
//	database restarted          the lease is void until the next second's write
//	agent killed                links of the zone are down, nothing else: services go on
//	                            inside the cell; outbox rows wait
//	NATS down                   tables are polled, messages wait in the outbox
//	a table signed by another   refused
//	a standby doesn't answer    after 5 s its slots are unknown, so uncovered; outputs wait for
//	                            2 s, then their slots are marked (cellkit/outputcommit)
//	the database went back      the bank is given up before anything comes out of it (cellkit/idbank)
package agent
