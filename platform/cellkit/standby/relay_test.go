package standby_test

import (
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
)

// What the publication has: all unit data, and whose each slot is.
var unitTables = cdc.Tables{
	"cell.slots": nil, "shop.things": nil, "shop.types": nil, "cell.outbox": nil, "cell.inbox": nil, "cell.parked": nil,
	"cell.idempotency": nil, "cell.wallets": nil, "cell.postings": nil, "cell.transfers": nil, "cell.credits": nil,
}

func (c *cell) relayOptions() cdc.Options {
	return cdc.Options{
		Zone: c.name, Pool: c.pool, DSN: c.db.AgentDSN, NATSURL: c.nats.URL, Log: c.log, Beat: 200 * time.Millisecond, MaxBytes: c.bound, MaxWAL: c.wal,
		Peers: func() []string {
			var all []string
			for name := range c.w.cells {
				all = append(all, name)
			}
			return all
		},
	}
}
