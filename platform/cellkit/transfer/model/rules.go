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

	// Voters.
	KeepMeetsFence
	PromiseWhenOld
	RestartWaits
	PromiseStored
	PromiseOutlasts
	SwapFromBase
	GivingUpPublishes
	MarkStored
	OnlyGrantsCount
	HighestCounter

	last
)

// rule says where the protocol has it, and what is done instead when it's off.
type rule struct{ name, place, off string }

func rules() [last]rule {
	return [...]rule{
		None: {"all rules", "", ""},

		RequestsHeld:        {"requests held", "P4.1", "CREDIT leaves before the standby has the frozen money"},
		RepliesHeld:         {"replies held", "P5", "CREDITED is answered before the standby has the credit"},
		RefusalsHeld:        {"refusals held", "P4.1", "REFUSED is answered before the standby has the row"},
		TombstonesHeld:      {"tombstones held", "P4.1", "CANCELLED is answered before the standby has the tombstone"},
		AppliedCounts:       {"what is applied counts", "P3.5", "what is in the standby's stream counts as applied"},
		MarkFirst:           {"marked, then sent on", "P4.3", "after 2 s the owner sends on without a mark"},
		MarkedStays:         {"a marked slot isn't failed over", "P4.3", "it is"},
		LiftWhenPassed:      {"a mark stays until all is passed", "P4.3", "it is lifted as soon as the standby is back"},
		InSyncOnly:          {"only who is in sync is promoted", "P4.2", "a standby that copies still is promoted too"},
		IncomingGates:       {"both gate in an exchange", "P4.2", "the incoming cell gates only when it is the standby"},
		IncomingGatesAtOnce: {"both gate from the start", "P4.2", "the incoming cell gates once the owner has heard that it is in sync"},
		OldGates:            {"the old one gates until the table", "P4.2", "the old standby gates no more when the incoming cell is in sync"},
		TakenAnew:           {"the former owner takes all anew", "P3.7", "the larger of two rows wins"},
		CopiedAnew:          {"a new standby takes all anew", "P3.7", "it follows the new owner's stream, without a copy"},
		TailStays:           {"the tail isn't merged", "P7", "the former owner's rows are merged into the new owner's"},
		OwnsByTable:         {"the table says who owns", "P7", "a former owner sends on what it holds"},
		SweeperSends:        {"open requests are sent again", "P4.5", "each is sent once"},
		NoteIsLocal:         {"'relayed' is the cell's own note", "P4.4", "the note is copied: the new owner doesn't send again"},
		SaidAgain:           {"a reply is made again", "P4.4", "a request that comes twice isn't answered twice"},
		FinalReply:          {"every end is answered", "P4.5", "a refusal isn't"},

		FirstWins:     {"the first row wins, for ever", "P5", "a CREDIT that comes twice credits twice"},
		Tombstone:     {"a CANCEL leaves a tombstone", "P5", "CANCELLED is answered without one"},
		TimeoutAsks:   {"a timeout only asks", "P5", "the deadline gives the money back"},
		OrderCredited: {"an order's CREDIT isn't refused", "P5", "it is, as any other"},
		RefundCapped:  {"refunds are capped at the credit", "P5", "each looks at the balance only"},
		CancelHeld:    {"CANCEL held", "P4.1", "CANCEL leaves before the standby has the wish"},

		ConfirmHeld:    {"CONFIRM held", "P4.1", "CONFIRM leaves before the standby has RESERVED"},
		ConfirmedHeld:  {"CONFIRMED held", "P4.1", "CONFIRMED is answered before the standby has it"},
		EndedHeld:      {"ENDED held", "P4.1", "the refusal of a CONFIRM is answered before the standby has the end"},
		RestockHeld:    {"restock held", "P4.1", "the RELEASE of a hold that may be CONFIRMED leaves early"},
		RestockApart:   {"an early RELEASE doesn't restock", "P4.1", "the RELEASE of a hold for which no CONFIRM was written leaves early, and ends a CONFIRMED one too"},
		ReleasedHeld:   {"RELEASED held", "P4.1", "RELEASED is answered before the standby has it"},
		PaymentHeld:    {"the order's CREDIT held", "P4.1", "CREDIT leaves before the standby has PAID"},
		PaidLast:       {"CONFIRM, then CREDIT", "P5", "the order is PAID when its money is frozen"},
		AllConfirmed:   {"PAID when all are CONFIRMED", "P5", "one CONFIRMED is enough"},
		PaidStays:      {"nothing cancels after PAID", "P5", "the buyer does"},
		AllReleased:    {"one refusal releases all", "P5", "the other holds are forgotten"},
		EndKept:        {"a hold's end is kept", "P5", "its row is deleted"},
		EndRefuses:     {"an ended hold refuses", "P5", "an expired hold is CONFIRMED"},
		UnknownChecked: {"an unknown hold reserves again", "P5", "it is CONFIRMED without a look at the stock"},
		HoldsEnd:       {"holds nobody asks for end", "P5", "they don't"},

		GrantHeld:      {"the grant held", "P5", "the grant leaves before the home's standby has the claim"},
		SureHeld:       {"the claim's CONFIRM held", "P4.1", "CONFIRM leaves before the standby has the user"},
		StateHeld:      {"the user's slot's word held", "P4.1", "it leaves before the standby has the user, or the tombstone"},
		AskedTombstone: {"asked for, a tombstone", "P5", "'nobody' is answered without one"},
		ClaimStays:     {"a claim never ends by time", "P5", "it does"},
		TakenHeld:      {"TAKEN held", "P4.1", "the refusal of a claim leaves early"},

		KeepMeetsFence:    {"K + F > N", "P2.2", "F is N - K"},
		PromiseWhenOld:    {"a promise when the grant is L old", "P2.4", "at once"},
		RestartWaits:      {"a voter that restarts waits L", "P2.4", "it forgets its grant"},
		PromiseStored:     {"a promise is on disk", "P2.4", "a restart forgets it"},
		PromiseOutlasts:   {"until the cell asks with a newer table", "P2.4", "a promise ends when there is any newer table"},
		SwapFromBase:      {"failover publishes v+1 over v", "P2.4", "over whatever is the newest"},
		GivingUpPublishes: {"giving up publishes too", "P2.4", "it doesn't, so promises never end"},
		MarkStored:        {"a mark is on disk before the grant", "P4.3", "a restart forgets it"},
		OnlyGrantsCount:   {"only grants count", "P4.3", "a refusal counts as having the mark"},
		HighestCounter:    {"the highest counter's marks", "P4.3", "those that came last"},
	}
}

// String is the rule in few words.
func (r Rule) String() string { return rules()[r].name }

// Place is where the protocol has it.
func (r Rule) Place() string { return rules()[r].place }

// Off is what is done instead when it is switched off.
func (r Rule) Off() string { return rules()[r].off }
