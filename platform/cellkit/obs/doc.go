// Package obs is what an operator sees of a process: metrics of a registry of
// its own, every series labelled with cell and service, and the internal
// listener with /livez, /readyz and /metrics, which is never the public one.
//
//	process --> Metrics (one registry) --> /metrics  <-- Prometheus
//	ready() -----------------------------> /readyz   <-- routers, scripts
//	                                       /livez    <-- the supervisor
//
// /livez answers as long as the process serves; it asks no dependency, so a
// database that is down never makes a supervisor restart a sound process.
package obs
