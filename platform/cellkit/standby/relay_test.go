package standby_test

import (
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
)

var unitTables = cdc.Tables{ // besides all unit data, which is published anyway
	"cell.slots": nil,
}

func (c *cell) relayOptions() cdc.Options {
	return cdc.Options{
		Zone: c.name, Pool: c.pool, DSN: c.db.AgentDSN, NATSURL: c.nats.URL, Peers: func() []string { return []string{"c2"} },
		Log: c.log, Beat: 200 * time.Millisecond,
	}
}
