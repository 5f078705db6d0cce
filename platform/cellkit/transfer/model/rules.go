package model

// Rule is one of the protocol's rules; a run may switch one off.
type Rule uint8

// The rules, None is no rule. What they say: see rules.
const (
	None Rule = iota

	// What holds for every kind of message.
	RequestsHeld
	RepliesHeld
	RefusalsHeld
	TombstonesHeld
	AppliedCounts
	MarkFirst
	MarkedStays
	LiftWhenPassed
	InSyncOnly
	IncomingGates
	IncomingGatesAtOnce
	OldGates
	PlaceNamed
	TakenAnew
	CopiedAnew
	TailStays
	OwnsByTable
	SweeperSends
	NoteIsLocal
	SaidAgain
	FinalReply

	// Transfers.
	FirstWins
	Tombstone
	TimeoutAsks
	OrderCredited
	RefundCapped
	CancelHeld

	// Orders.
	ConfirmHeld
	ConfirmedHeld
	EndedHeld
	RestockHeld
	RestockApart
	ReleasedHeld
	PaymentHeld
	PaidLast
	AllConfirmed
	PaidStays
	AllReleased
	EndKept
	EndRefuses
	UnknownChecked
	HoldsEnd

	// Claims.
	GrantHeld
	SureHeld
	StateHeld
	AskedTombstone
	ClaimStays
	TakenHeld

	last
)

// rule is an explore.Rule.
type rule struct{ Place, Name, Off string }

func rules() [last]rule {
	return [...]rule{

		RequestsHeld:        {"P4.1", "requests held", "CREDIT leaves before the standby has the frozen money"},
		RepliesHeld:         {"P5", "replies held", "CREDITED is answered before the standby has the credit"},
		RefusalsHeld:        {"P4.1", "refusals held", "REFUSED is answered before the standby has the row"},
		TombstonesHeld:      {"P4.1", "tombstones held", "CANCELLED is answered before the standby has the tombstone"},
		AppliedCounts:       {"P3.5", "what is applied counts", "what is in the standby's stream counts as applied"},
		MarkFirst:           {"P4.3", "marked, then sent on", "after 2 s the owner sends on without a mark"},
		MarkedStays:         {"P4.3", "a marked slot isn't failed over", "it is"},
		LiftWhenPassed:      {"P4.3", "a mark stays until all is passed", "it is lifted as soon as the standby is back"},
		InSyncOnly:          {"P4.2", "only who is in sync is promoted", "a standby that copies still is promoted too"},
		IncomingGates:       {"P4.2", "both gate in an exchange", "the incoming cell gates only when it is the standby"},
		IncomingGatesAtOnce: {"P4.2", "both gate from the start", "the incoming cell gates once the owner has heard that it is in sync"},
		OldGates:            {"P4.2", "the old one gates until the table", "the old standby gates no more when the incoming cell is in sync"},
		PlaceNamed:          {"P4.2", "a place to pass, named after", "whoever is in sync is published, however far behind"},
		TakenAnew:           {"P3.7", "the former owner takes all anew", "the larger of two rows wins"},
		CopiedAnew:          {"P3.7", "a new standby takes all anew", "it follows the new owner's stream, without a copy"},
		TailStays:           {"P7", "the tail isn't merged", "the former owner's rows are merged into the new owner's"},
		OwnsByTable:         {"P7", "the table says who owns", "a former owner sends on what it holds"},
		SweeperSends:        {"P4.5", "open requests are sent again", "each is sent once"},
		NoteIsLocal:         {"P4.4", "'relayed' is the cell's own note", "the note is copied: the new owner doesn't send again"},
		SaidAgain:           {"P4.4", "a reply is made again", "a request that comes twice isn't answered twice"},
		FinalReply:          {"P4.5", "every end is answered", "a refusal isn't"},

		FirstWins:     {"P5", "the first row wins, for ever", "a CREDIT that comes twice credits twice"},
		Tombstone:     {"P5", "a CANCEL leaves a tombstone", "CANCELLED is answered without one"},
		TimeoutAsks:   {"P5", "a timeout only asks", "the deadline gives the money back"},
		OrderCredited: {"P5", "an order's CREDIT isn't refused", "it is, as any other"},
		RefundCapped:  {"P5", "refunds are capped at the credit", "each looks at the balance only"},
		CancelHeld:    {"P4.1", "CANCEL held", "CANCEL leaves before the standby has the wish"},

		ConfirmHeld:    {"P4.1", "CONFIRM held", "CONFIRM leaves before the standby has RESERVED"},
		ConfirmedHeld:  {"P4.1", "CONFIRMED held", "CONFIRMED is answered before the standby has it"},
		EndedHeld:      {"P4.1", "ENDED held", "the refusal of a CONFIRM is answered before the standby has the end"},
		RestockHeld:    {"P4.1", "restock held", "the RELEASE of a hold that may be CONFIRMED leaves early"},
		RestockApart:   {"P4.1", "an early RELEASE doesn't restock", "the RELEASE of a hold for which no CONFIRM was written leaves early, and ends a CONFIRMED one too"},
		ReleasedHeld:   {"P4.1", "RELEASED held", "RELEASED is answered before the standby has it"},
		PaymentHeld:    {"P4.1", "the order's CREDIT held", "CREDIT leaves before the standby has PAID"},
		PaidLast:       {"P5", "CONFIRM, then CREDIT", "the order is PAID when its money is frozen"},
		AllConfirmed:   {"P5", "PAID when all are CONFIRMED", "one CONFIRMED is enough"},
		PaidStays:      {"P5", "nothing cancels after PAID", "the buyer does"},
		AllReleased:    {"P5", "one refusal releases all", "the other holds are forgotten"},
		EndKept:        {"P5", "a hold's end is kept", "its row is deleted"},
		EndRefuses:     {"P5", "an ended hold refuses", "an expired hold is CONFIRMED"},
		UnknownChecked: {"P5", "an unknown hold reserves again", "it is CONFIRMED without a look at the stock"},
		HoldsEnd:       {"P5", "holds nobody asks for end", "they don't"},

		GrantHeld:      {"P5", "the grant held", "the grant leaves before the home's standby has the claim"},
		SureHeld:       {"P4.1", "the claim's CONFIRM held", "CONFIRM leaves before the standby has the user"},
		StateHeld:      {"P4.1", "the user's slot's word held", "it leaves before the standby has the user, or the tombstone"},
		AskedTombstone: {"P5", "asked for, a tombstone", "'nobody' is answered without one"},
		ClaimStays:     {"P5", "a claim never ends by time", "it does"},
		TakenHeld:      {"P4.1", "TAKEN held", "the refusal of a claim leaves early"},
	}
}
