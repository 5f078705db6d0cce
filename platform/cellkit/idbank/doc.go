// Package idbank is a cell's own stock of IDs, for when idgen is away longer than
// the processes' segments last. The zone's agent keeps it in the cell's database
// and is the only one who hands it out:
//
//	idgen --lease, a day's stock--> cell.id_bank     --withdraw--> a process's segments
//	                                cell.id_machines --raise-----> a process's fallback numbers
//	                                cell.id_life: counter
//
//	one grant, in this order:
//	  recall what the witness (a file of the agent's) remembers
//	  BEGIN  lock the life row; is it the database that is remembered?
//	         no  -> empty the bank, lift all ceilings above all that may be out
//	         yes -> cut a range off, or raise a ceiling; counter + 1
//	  COMMIT on disk
//	  the witness attests system identifier, timeline, counter, ceiling (fsync, rename)
//	  answer
//
// Why nothing is given twice: an answer was attested before it was given, so a
// database that has lost it shows a lower counter (or another system, another
// timeline) than the witness, and gives up all that the lost history may have
// given. Fallback numbers of one machine lie below its stored ceiling, and who
// comes next begins there, whoever else still uses what it got. No ceiling is
// ever more than an hour ahead of time, so even with nothing remembered there is
// a floor that is above all of them.
//
//	what goes wrong                    what happens
//	agent ends after the commit        that range is nobody's; the counter is ahead, which is fine
//	file can't be written              refused, the range is nobody's
//	file missing or damaged            all is given up, as for a database that went back
//	database restored, rolled back,    found at the next grant, before it: all is given up,
//	promoted with a lost end           alarm=ids.lost; the bank fills anew, the fallback goes on
//	                                   above the ceilings that are remembered
//	database and file both go back     found if the timeline changed; else not (until the
//	by one snapshot of one disk        leases' counter at the voters, P2, is the witness)
//	two agents on one database         not allowed: each has a file of its own
//	nine processes and more            the machine used longest ago changes its holder
//	over 4,096 IDs/s for hours         IDS_FALLBACK_AHEAD: an hour ahead of time is the most
//	clock of agent or database ahead   the slower one counts
//	both ahead, then put right         IDS_FALLBACK_AHEAD until time is within an hour
//	ordinal above 31                   IDS_NO_FALLBACK: five bits; bank and segments go on
//	idgen's budget over half used      the bank isn't filled, the rest is for processes
package idbank
