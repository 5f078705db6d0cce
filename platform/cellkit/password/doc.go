// Package password hashes passwords (argon2id), few at a time: a hash takes 19 MiB
// and a core for tens of milliseconds.
//
//	Hash, Verify ---> at most queue wait ---> at most atOnce run ---> argon2id
//
//	what can go wrong        then
//	too many wait            the owner's error at once, as a 429 with Retry-After
//	out of time in the queue UNAVAILABLE
//	a hash of another form   an error: it is never taken for a wrong password
//	nobody has that phone    as slow as a wrong password, and never right
package password
