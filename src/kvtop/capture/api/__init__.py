"""What the body of each API route says, asked and answered; secrets are taken out here."""
