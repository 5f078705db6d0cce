package id

// Room is what is left of a kind's budget and among how many holders, as idgen
// said; the zero Room is not known.
type Room struct {
	Left    int64
	Holders int
}

// RoomFunc tells the room of a kind; idgenapi.Client.Room is one.
type RoomFunc func(kind string) Room

// leastStep is asked for when there is hardly any room: less would be all trips
// and no IDs, and idgen cuts it short anyway.
const leastStep = 100

// nextStep is how much to lease after the first lease: 30 minutes at the rate, at
// least FirstLease and at most MaxLease, and no more than a quarter of a fair
// share of what is left of the budget. (A fixed step makes callers wait: 1,000 are
// a tenth of a second at 10,000 IDs/s.)
func nextStep(perSecond float64, room Room) int64 {
	n := int64(min(max(perSecond*stockFor.Seconds(), FirstLease), MaxLease))
	if room.Holders > 0 {
		n = min(n, max(room.Left/int64(4*room.Holders), leastStep))
	}
	return n
}
