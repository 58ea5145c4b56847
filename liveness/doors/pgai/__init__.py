"""The door for pgai's vectorizer workers: tables in the user's database, and a follower that reads them."""
