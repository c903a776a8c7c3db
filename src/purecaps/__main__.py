from purecaps.cli import main

main()
